"""The command line: commands, doctor, bench, servers, and standalone scripts."""
