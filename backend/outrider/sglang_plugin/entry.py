"""x"""
def load() -> None:
    pass
