"""Removes folders that stayed empty: their files are not part of the chosen body."""

import os

for folder, _, _ in os.walk("src", topdown=False):
    if not os.listdir(folder):
        os.rmdir(folder)
