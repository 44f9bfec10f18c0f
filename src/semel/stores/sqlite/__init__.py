"""The SQLite store, the embedded default: one file, no server, several threads and processes.

`sqlite:///relative.db` or `sqlite:////absolute.db`, with the options

- `synchronous=normal` (default): what was acknowledged survives the death of the process, `kill -9` included. A power
  cut or a crash of the operating system may undo the last transactions, and the keys in them would then run again.
- `synchronous=full`: it survives the power cut too, for one `fsync` per group of writes.
- `busy_timeout_ms` (5000): how long to wait for another process that is writing before the store counts as unavailable.
  No caller waits longer, also behind others, than that or a second.

The file must be on a local disk: SQLite's WAL mode does not work across machines. The module `clock` says which
time it goes by, and `files` what happens when it is removed while a process has it open.
"""
