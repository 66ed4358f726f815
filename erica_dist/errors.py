"""The one exception for what the user can put right: bad input, a bad setting, a full disk.

Commands print its text without a traceback and exit with status 2; everything else is a fault of ours and keeps its
traceback. The text names the file (or setting), the place in it, and the remedy.
"""


class UserError(Exception):
    """Something outside this program is wrong and the text says what to do about it."""


class DamagedInputError(UserError):
    """An input file that is cut off or damaged; what came before the place can be used (`allow_incomplete`)."""


class DamagedFile(UserError):
    """A file whose bytes are not those that its manifest tells of; other files of the same folder may be whole."""
