"""The work folder of a session, emptied and measured whatever the learner's code made of it."""

import os
import stat
from itertools import count


def empty_folder(folder: str) -> None:
    """Remove everything in a folder: read-only ones, links, and trees too deep for any path.

    Deep folders are moved up and emptied there, so neither recursion nor the length of paths is a limit. Nothing
    must be running in it any more.
    """
    os.chmod(folder, 0o700)
    numbers = count()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        with os.scandir(here) as entries:
            found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for path, is_folder in found:
            if not is_folder:
                os.unlink(path)
                continue
            os.chmod(path, 0o700)  # it cannot be moved or read without
            if here != folder:
                path, old = _unused(folder, numbers), path
                os.rename(old, path)
            waiting.append(path)
        if here != folder:
            os.rmdir(here)


def _unused(folder: str, numbers: "count[int]") -> str:
    while os.path.lexists(path := os.path.join(folder, f"moved-{next(numbers)}")):
        pass
    return path


def folder_use(folder: str, most_files: int) -> tuple[int, int]:
    """Bytes on the disk and number of files below a folder; stops counting at `most_files`."""
    size = files = 0
    waiting = [folder]
    while waiting and files <= most_files:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    if files > most_files:
                        break
        except OSError:  # gone meanwhile, or closed to us
            continue
    return size, files
