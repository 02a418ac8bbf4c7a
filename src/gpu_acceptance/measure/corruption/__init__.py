"""Silent data corruption: a result that is wrong and that nothing reports.

The same work, bit for bit, is done again and again, and every output is hashed on the device. Three comparisons, each of
which finds what the others cannot:
- a GPU with itself (`repeat`): faults that come and go;
- a GPU with its peers (`compare`): one that is always wrong in the same way;
- all GPUs with a stored hash of the same versions (`golden`): all that are wrong alike.
What minutes cannot find is stated as a rate (`detection`).
"""
