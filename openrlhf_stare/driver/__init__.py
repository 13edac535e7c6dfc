"""What happens before and around OpenRLHF's command, in the driver process.

It may use every other room, and OpenRLHF's command and Ray besides; no other room imports from here.
"""
