//! A reader: may only look, and looks as hard as possible.
