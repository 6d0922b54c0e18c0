"""Names of the world `cldr`: territories with an article, uninhabited ones, dependencies of states.

Separate from `drlib.worlds.cldr`, whose source text is part of the version of its world.
"""

# Territories with an article, by their last word or by their whole name.
WITH_ARTICLE = ("Islands", "Republic", "Territory", "Territories", "States", "Kingdom", "Emirates")
TAKE_AN_ARTICLE = (
    "Bahamas",
    "Caribbean Netherlands",
    "Comoros",
    "Gambia",
    "Isle of Man",
    "Maldives",
    "Netherlands",
    "Philippines",
    "Seychelles",
)

UNINHABITED = frozenset(  # whose languages and currencies nobody asks about
    "Antarctica|Bouvet Island|British Indian Ocean Territory|Clipperton Island|French Southern "
    "Territories|Heard & McDonald Islands|South Georgia & South Sandwich Islands|"
    "U.S. Outlying Islands".split("|")
)
DEPENDENCIES = {  # of states: everybody knows whose money they have
    "Australia": "Christmas Island|Cocos (Keeling) Islands|Norfolk Island",
    "China": "Hong Kong SAR China|Macao SAR China",
    "Denmark": "Faroe Islands|Greenland",
    "Finland": "Åland Islands",
    "France": "French Guiana|French Polynesia|Guadeloupe|Martinique|Mayotte|New Caledonia|Réunion|"
    "St. Barthélemy|St. Martin|St. Pierre & Miquelon|Wallis & Futuna",
    "Netherlands": "Aruba|Caribbean Netherlands|Curaçao|Sint Maarten",
    "New Zealand": "Cook Islands|Niue|Tokelau",
    "Norway": "Svalbard & Jan Mayen",
    "Spain": "Canary Islands|Ceuta & Melilla",
    "United Kingdom": "Anguilla|Ascension Island|Bermuda|British Virgin Islands|Cayman Islands|"
    "Falkland Islands|Gibraltar|Guernsey|Isle of Man|Jersey|Montserrat|Pitcairn Islands|Sark|"
    "St. Helena|Tristan da Cunha|Turks & Caicos Islands",
    "United States": "American Samoa|Guam|Northern Mariana Islands|Puerto Rico|U.S. Virgin Islands",
}
STATE_OF = {land: state for state, lands in DEPENDENCIES.items() for land in lands.split("|")}
