"""One subject per file or folder: functions that measure and return numbers. They know torch; they know no limit and no pytest."""
