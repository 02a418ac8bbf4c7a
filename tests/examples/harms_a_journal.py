"""Does to the journal of rank 1 what HARM says, as a cleaner or a synchronising tool could in the middle of a run."""

import os
from pathlib import Path


def test_harm(check, ranks):
    check("harms_a_journal.value", 5.0, "GB/s")
    if ranks.rank == 0:
        (journal,) = Path("reports").glob("*/journal/rank-00001.jsonl")
        content = journal.read_bytes()
        match os.environ["HARM"]:
            case "truncated":
                os.truncate(journal, len(content) // 2)
            case "unlinked":
                journal.unlink()
            case "replaced":  # by itself: what follows goes into a file that has no name any more
                journal.unlink()
                journal.write_bytes(content)
            case "overwritten":
                journal.write_bytes(content.replace(b'"generation":1', b'"generation":7'))


def test_next(check):
    check("harms_a_journal.value", 5.0, "GB/s")
