"""Is the table still true?"""
