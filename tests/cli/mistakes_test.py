"""The mistakes that people make: each message names the wrong word, says why it is wrong, and shows a way out."""

import unittest

from support import ProgramTest, run

USAGE, REFUSED = 2, 1

# A file's name -> its content, for the rows below.
FILES = {
    "empty.toml": "",
    "empty.csv": "",
    "empty.json": "",
}


# A row: the command line, the words that its message has, and the exit code.
ROWS = [
    ("trian", ['no command "trian"', 'did you mean "train"?'], USAGE),
]


class Mistakes(ProgramTest):
    def test_each_has_its_message(self):
        pass


if __name__ == "__main__":
    unittest.main()
