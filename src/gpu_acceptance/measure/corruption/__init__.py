"""Silent data corruption: a result that is wrong and that nothing reports.

The same work, bit for bit, is done again and again, and every output is hashed on the device. Two comparisons, each of
which finds what the other cannot: a GPU with itself (`repeat`) finds faults that come and go; a GPU with its peers (`peers`)
finds one that is always wrong in the same way. What minutes cannot find is stated as a rate (`survey`).
"""
