"""The log and the pool around it: events, the scripts that append them, and readers.

Decides: how an event looks, which key holds what, how a script's answer becomes a result or an
error, and how a connection is made. Never decides: what a term, a node or a lease may do (the
scripts do), or what the events add up to (the projections do).

Fails: a write whose answer is lost is repeated with the same arguments until its deadline, then is
`OutcomeUnknown`, never "not done". A log that cannot be read as events is `CorruptLog`.
"""
