/* route.c - the table of routes, keys and origins. See route.h. */
#include "server/route.h"

#include <string.h>
#include <strings.h>

#include "server/api.h"
#include "server/server_state.h"

enum { ROUTE_OPEN = 1, ROUTE_NEEDS_MODEL = 2, ROUTE_IS_PREFIX = 4 };

static const struct route {
    const char *path;
    enum request_method method; /* METHOD_GET: HEAD too */
    unsigned flags;
    api_handler *handler;
} routes[] = {
    {"/health", METHOD_GET, ROUTE_OPEN, api_health},
    {"/health_generate", METHOD_GET, ROUTE_OPEN, api_health},
    {"/ready", METHOD_GET, ROUTE_OPEN, api_ready},
    {"/ping", METHOD_GET, 0, api_ping},
    {"/metrics", METHOD_GET, 0, api_metrics},
    {"/v1/models", METHOD_GET, ROUTE_NEEDS_MODEL, api_models},
    {"/v1/models/", METHOD_GET, ROUTE_NEEDS_MODEL | ROUTE_IS_PREFIX, api_model},
    {"/server_info", METHOD_GET, ROUTE_NEEDS_MODEL, api_server_info},
    {"/get_server_info", METHOD_GET, ROUTE_NEEDS_MODEL, api_server_info},
    {"/model_info", METHOD_GET, ROUTE_NEEDS_MODEL, api_model_info},
    {"/get_model_info", METHOD_GET, ROUTE_NEEDS_MODEL, api_model_info},
    {"/v1/chat/completions", METHOD_POST, ROUTE_NEEDS_MODEL, api_chat_completions},
    {"/v1/completions", METHOD_POST, ROUTE_NEEDS_MODEL, api_completions},
    {"/tokenize", METHOD_POST, ROUTE_NEEDS_MODEL, api_tokenize},
    {"/v1/tokenize", METHOD_POST, ROUTE_NEEDS_MODEL, api_tokenize},
    {"/detokenize", METHOD_POST, ROUTE_NEEDS_MODEL, api_detokenize},
    {"/v1/detokenize", METHOD_POST, ROUTE_NEEDS_MODEL, api_detokenize},
};

static const struct route *find_route(struct str path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        struct str p = str_of(routes[i].path);
        if (str_eq(p, path) ||
            ((routes[i].flags & ROUTE_IS_PREFIX) && path.len > p.len && str_starts(path, p))) {
            return &routes[i];
        }
    }
    return NULL;
}

/* --- who may ask ------------------------------------------------------------------------------ */

/* Takes as long for every wrong key of one length: no early exit, no branch on a byte. */
static bool is_key(struct str given, const char *key)
{
    size_t n = strlen(key);
    unsigned char difference = given.len == n ? 0 : 1;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = given.len > 0 ? (unsigned char)given.ptr[i % given.len] : 0;
        difference |= (unsigned char)(c ^ (unsigned char)key[i]);
    }
    return difference == 0;
}

static bool has_key(const struct server *s, const struct http_request *r)
{
    struct str bearer = r->headers[HEADER_AUTHORIZATION], key = r->headers[HEADER_X_API_KEY];

    if (!s->o.api_key) {
        return true;
    }
    if (bearer.len > 7 && strncasecmp(bearer.ptr, "Bearer ", 7) == 0 &&
        is_key((struct str){bearer.ptr + 7, bearer.len - 7}, s->o.api_key)) {
        return true;
    }
    return key.ptr && is_key(key, s->o.api_key);
}

/* "localhost:30000" -> "localhost", "[::1]:80" -> "[::1]" */
static struct str host_name(struct str authority)
{
    size_t n = 0;

    if (authority.len > 0 && authority.ptr[0] == '[') {
        while (n < authority.len && authority.ptr[n] != ']') {
            n++;
        }
        n = n < authority.len ? n + 1 : n;
    } else {
        while (n < authority.len && authority.ptr[n] != ':') {
            n++;
        }
    }
    return (struct str){authority.ptr, n};
}

static bool is_address(struct str host)
{
    if (host.len > 0 && host.ptr[0] == '[') {
        return true;
    }
    for (size_t i = 0; i < host.len; i++) {
        if ((host.ptr[i] < '0' || host.ptr[i] > '9') && host.ptr[i] != '.') {
            return false;
        }
    }
    return host.len > 0;
}

static bool equals_ignoring_case(struct str a, struct str b)
{
    return a.len == b.len && strncasecmp(a.ptr, b.ptr, a.len) == 0;
}

/* A page on the web can make its own name point to 127.0.0.1 and then talk to an open server there
 * (DNS rebinding). Such a request carries that name, so a server that only this machine can reach
 * and that asks for no key knows just addresses and "localhost". */
static bool is_host_allowed(const struct server *s, const struct http_request *r)
{
    struct str host = host_name(r->headers[HEADER_HOST]);
    static const struct str local = {"localhost", 9}, local_domain = {".localhost", 10};

    if (!s->is_loopback || s->o.api_key || host.len == 0) {
        return true;
    }
    return is_address(host) || equals_ignoring_case(host, local) || str_ends(host, local_domain) ||
           equals_ignoring_case(host, str_of(s->o.host));
}

/* Requests from a page of another origin carry that origin. */
static bool is_origin_allowed(const struct http_request *r)
{
    struct str origin = r->headers[HEADER_ORIGIN], host = r->headers[HEADER_HOST];
    size_t scheme;

    if (!origin.ptr) {
        return true;
    }
    scheme = str_find(origin, STR("://"));
    return scheme != SIZE_MAX &&
           equals_ignoring_case((struct str){origin.ptr + scheme + 3, origin.len - scheme - 3},
                                host);
}

static bool refuse(struct conn *c, int status, const char *code, const char *message)
{
    conn_reply_error(c, &(struct reply_error){.status = status, .code = code, .message = message});
    return false;
}

/* --- what may be asked -------------------------------------------------------------------------- */

static bool is_json(struct str type)
{
    static const struct str json = {"application/json", 16};

    return type.len >= json.len && strncasecmp(type.ptr, json.ptr, json.len) == 0 &&
           (type.len == json.len || type.ptr[json.len] == ';' || type.ptr[json.len] == ' ');
}

static const char *allowed_methods(const struct route *route)
{
    return !route || route->method == METHOD_GET ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

static bool check_method(struct conn *c, const struct route *route)
{
    enum request_method method = c->http.request.method;

    if (method == METHOD_OPTIONS) {
        conn_reply_allow(c, 204, allowed_methods(route), NULL);
        return false;
    }
    if (!route) {
        return refuse(c, 404, NULL, "there is nothing at this path");
    }
    if (method != route->method && !(method == METHOD_HEAD && route->method == METHOD_GET)) {
        conn_reply_allow(
            c, 405, allowed_methods(route),
            &(struct reply_error){.status = 405, .message = "this path does not take this method"});
        return false;
    }
    return true;
}

bool route_admit(struct server *s, struct conn *c)
{
    const struct http_request *r = &c->http.request;
    const struct route *route = find_route(r->path);

    if (!is_host_allowed(s, r)) {
        return refuse(c, 403, NULL, "this server is not known by the name in the Host header");
    }
    if (!is_origin_allowed(r)) {
        return refuse(c, 403, NULL, "requests from other origins are not answered");
    }
    if (r->method != METHOD_OPTIONS && !(route && (route->flags & ROUTE_OPEN)) && !has_key(s, r)) {
        return refuse(c, 401, "invalid_api_key",
                      "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'");
    }
    if (!check_method(c, route)) {
        return false;
    }
    if (route->flags & ROUTE_NEEDS_MODEL) {
        if (!s->is_ready) {
            return refuse(c, 503, "loading", "the model is still loading");
        }
        if (s->is_draining) {
            return refuse(c, 503, "draining", "the server is shutting down");
        }
    }
    if (route->method == METHOD_POST && !is_json(r->headers[HEADER_CONTENT_TYPE])) {
        return refuse(c, 400, NULL, "the Content-Type must be application/json");
    }
    return true;
}

void route_dispatch(struct server *s, struct conn *c)
{
    find_route(c->http.request.path)->handler(s, c);
}
