"""What runs inside an SGLang process: it makes a lane exact and obedient. Nothing else of ours imports it."""
