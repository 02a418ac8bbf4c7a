"""Functions that measure one subject each and return numbers. They know torch; they know no limit and no pytest."""
