// The server's HTTP API: JSON there and back, and errors with the server's own reason and sentence.

class ApiError extends Error {
    constructor(status, reason, message) {
        super(message);
        this.status = status;
        this.reason = reason;
    }

    get needsLogin() {
        return this.status === 401;
    }
}

const loggedOutListeners = new Set();

// Calls back when the server no longer knows the session.
export const onLoggedOut = (listener) => loggedOutListeners.add(listener);

export const channelPath = (name, part = "") => `/api/channels/${encodeURIComponent(name)}${part}`;

export const get = (path, signal) => request("GET", path, undefined, signal);
export const post = (path, body) => request("POST", path, body);

export const session = {
    read: () => get("/api/session"),
    open: (token) => post("/session", { token }),
    close: () => request("DELETE", "/session"),
};

async function request(method, path, body, signal) {
    const headers = method === "GET" ? {} : { "Content-Type": "application/json", "X-Millrace-Console": "1" };
    const init = { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) };
    const response = await fetchResponse(path, init);
    if (response.ok) return response.status === 204 ? null : response.json();
    const { reason, message } = await response.json().catch(() => ({}));
    const error = new ApiError(
        response.status,
        reason ?? "",
        message ?? `The server responded with status ${response.status}.`,
    );
    if (error.needsLogin && path !== "/session") for (const listener of loggedOutListeners) listener(error);
    throw error;
}

async function fetchResponse(path, init) {
    try {
        return await fetch(path, init);
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "", "The server does not respond.");
    }
}
