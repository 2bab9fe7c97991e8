"""Jobs of several real ranks, one of which holds the others up: is it named, with the line at which it is?"""
