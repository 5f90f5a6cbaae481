"""The web console: pages about one or more clusters, rendered on the server.

Owns: the contract between pages and the application, below.
Invariants: pages reach a cluster only through pylog.client; of the broker they use functions
  without state only, the sentences about groups; every page works without JavaScript; the rights
  of the logged-in user decide, because each session has its own connections.

`serving.serve()` runs the application that `app.create_app()` builds; `pylog console` and brokerd's
child process call it. The packages of the extra `console` are needed.

A page
    Each module of `views/` exports PAGES, a list of pages.Page. The application finds the modules
    itself, so that a new page needs no other change:

        PAGES = [Page("/topics/{topic}", topic, operations=("DESCRIBE TOPIC",), changes=False,
                      audit="")]

        async def topic(request: Request, cluster: ClusterSession) -> Response:
            name = request.path_params["topic"]
            ...
            return render(request, "topic.html", name=name)

    Path parameters are single segments, already decoded: a group named `a/b` is one segment.
    A page of a cluster (`scope="cluster"`, the default) is served below /c/{cluster}, and also
    without that prefix if there is one cluster.

What the application does for every page, before the view runs
    Session: without a login, it redirects to /login. CSRF: a request other than GET must have the
    session's token (form field `csrf`, or header X-CSRF-Token) and must come from this origin.
    Read-only mode and the console's own permissions: a page with changes=True answers 403.
    Audit: a page with an `audit` name writes a line after the view, for every POST, and for every
    GET of a page without changes. The view adds details with pages.audit_details(request, ...),
    and a POST that changed nothing (a preview) calls pages.not_audited(request).

What a view uses
    cluster.admin            the asyncio Admin of this session's user
    cluster.client_settings  settings for consumers and producers of this user
    cluster.name, cluster.principal, cluster.is_brokerd
    cluster.url("topics", name, "records", partition=3)   a path of this cluster, quoted
    await cluster.attempt("DESCRIBE CLUSTER", call)        a part of a page that may be denied or
                                                           fail; the rest of the page still works
    rendering.render(request, template, **context)
    listings.Listing         q, sort, page, size and format=json|csv of a list
    pages.PageError          an error page: the failed action, the value, the remedy
    pages.redirect(url, message)   after a POST: 303, and the message on the next page
    request.app.state.console      the Console: settings, clock, sessions, audit

Templates extend base.html, and show forms only if can_change (or can_produce). They contain no
inline script, style or event attributes, because the content security policy blocks them. All text
is escaped; `|safe` is not used. Filters: bytes_size, number, local_time, visible (control and
bidirectional characters become escapes).
"""
