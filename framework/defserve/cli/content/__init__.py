"""What servers send to be looked at: the content of results, resources and prompts.

Pictures, sounds and other bytes are saved to new files, and their names are printed. No file is ever overwritten, and
no name leaves the folder: servers choose only words of it.

May import: `cli.screen`.
"""
