"""The report: page, exports, remedies, redaction. May I sign, what is wrong and where, how far from the limit is everything else?"""
