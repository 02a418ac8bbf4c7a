"""Silent data corruption: a result that is wrong and that nothing reports.

The same work, bit for bit, is done again and again, and every output is hashed on the device. Two comparisons find different faults: a GPU
with itself (`repeat`) finds faults that come and go; a GPU with its peers (`survey`) finds one that is always wrong in the same way. The
rate of faults that such a run excludes is stated (`survey`).
"""
