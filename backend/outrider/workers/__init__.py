"""One gateway in several processes: a parent that keeps lanes and workers, and workers that share its port."""
