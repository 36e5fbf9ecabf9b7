"""What runs in the browser on the page Diagnose, in Pyodide: the diagnosis itself, with a stand-in for torch."""
