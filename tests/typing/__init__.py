"""What users write, for mypy and pyright to look at (``make types``); nothing here is run.

A wrong use carries ``type: ignore`` for the one and ``pyright: ignore`` for the other, with what each calls the error:
where a checker comes to accept it, the ignore is unused, which is an error too. Above it stands what is wrong.
"""
