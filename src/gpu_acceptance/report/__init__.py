"""The report: page, exports, remedies, redaction. May I sign, what is wrong and where, how far from the limit is everything else?"""

from gpu_acceptance.report.build import build_page, write_page

__all__ = ["build_page", "write_page"]
