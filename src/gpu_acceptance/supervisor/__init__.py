"""One rank's supervisor: its event loop, its attempts, and its hold on the rank worker. It cannot hang."""
