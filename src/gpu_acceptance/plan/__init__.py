"""What will run: what pytest collected, what its markers ask for, and the plan that every rank keeps."""
