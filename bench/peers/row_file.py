"""Files of rows, one JSON object per line, as bench/harness.h writes them: appended as they are measured, so
that a run that is stopped leaves those that it has."""
import json
import pathlib


def read_rows(path):
    """The rows of a file; none if there is no file. Leaves out a last line that was cut off."""
    path = pathlib.Path(path)
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


class RowFile:
    """Appends to a file, or to none if the path is None. `names` are those of the rows it resumes."""

    def __init__(self, path, resume=False):
        kept = read_rows(path) if path and resume else []
        self.names = {row["name"] for row in kept}
        self.file = open(path, "a" if kept else "w") if path else None
        if kept:
            self.file.truncate(sum(len(line) for line in open(path, "rb") if line.endswith(b"\n")))

    def append(self, rows):
        """Rows of one measurement: a run that is killed has written all of them or none."""
        if self.file and rows:
            self.file.write("".join(json.dumps(row) + "\n" for row in rows))
            self.file.flush()
