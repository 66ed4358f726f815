"""English words that are no names by themselves, although knowledge bases have them as names (country codes, titles of
songs, calendar entries): function words, numerals, months, days. Lower case.
"""

from __future__ import annotations

_FUNCTION_WORDS = """
a about above across after afterwards again against all almost alone along already also although always am among an
and another any anyhow anyone anything anyway anywhere are around as at away back be became because become becomes
been before behind being below beside besides between beyond both but by can cannot could did do does doing done
down due during each either else elsewhere enough etc even ever every everyone everything everywhere except few for
former from further go had has have he hence her here hers herself him himself his how however i if in indeed
instead into is it its itself just last latter least less like made make many may me meanwhile might mine more
moreover most mostly much must my myself namely neither never nevertheless next no nobody none nor not nothing now
nowhere of off often oh on once one only onto or other others otherwise our ours ourselves out over own per perhaps
please quite rather re really regarding same say see seem seemed seems several shall she should show side since so
some somehow someone something sometimes somewhere still such than that the their theirs them themselves then thence
there thereafter thereby therefore these they this those though through throughout thus to together too top toward
towards under unless until up upon us used various very via was we well were what whatever when where whereas
wherever whether which while who whole whom whose why will with within without would yes yet you your yours yourself
yourselves
"""
_NUMERALS = """
zero two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty
ninety hundred thousand million billion first second third fourth fifth sixth seventh eighth ninth tenth half
"""
_CALENDAR = """
january february march april june july august september october november december monday tuesday wednesday thursday
friday saturday sunday spring summer autumn winter today tomorrow yesterday
"""

COMMON_WORDS = frozenset(f"{_FUNCTION_WORDS} {_NUMERALS} {_CALENDAR}".split())
