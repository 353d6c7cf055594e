// What follows from the figures of a channel, which are null while it is not open.

export const depthOf = ({ queued_events: queued, taken_events: taken }) => (queued === null ? null : queued + taken);

export const fillOf = (row) => (row.queued_events === null ? null : row.fill);

// Seconds since a time by the server's clock.
export const since = (time, now) => (time === null ? null : now - time);
