"""One path of the console for each route that answers GET with a page, and names that are in it.

A new route fails the tests of this table until it has a path here.
"""

from urllib.parse import quote

RULE = ("resource_type=TOPIC&resource_name={topic}&pattern_type=LITERAL&principal=User:{user}"
        "&host=*&operation=READ&permission=ALLOW")
# Route -> query strings: the page is tested with each of them.
QUERIES = {
    "/topics": ["", "q=no-such-topic", "internal=1"],
    "/topics/{topic}/records": ["", "value=nothing&json=$.a==1&json=$.b", "json=x", "tail=1"],
    "/topics/{topic}/settings": ["", "edit=retention.ms", "edit="],
    "/brokers/{broker}/settings": ["q=log.ret"],
    "/groups": ["", "type=classic&q=no-such-group"],
    "/acls/check": [
        "", "principal=User:{user}&operation=READ&resource_type=TOPIC&resource_name={topic}"],
    "/acls/delete": [RULE],
    "/users/{user}/delete": ["mechanism=SCRAM-SHA-512"],
    "/schemas/{subject}/diff": ["from=1&to=2"],
    "/schemas/check": ["subject={subject}"],
}
# Not pages of HTML: streams and files.
OTHERS = ("/static/{hash}/{name}", "/healthz", "/topics/{topic}/records/stream",
          "/topics/{topic}/download", "/topics/{topic}/records/{partition}/{offset}/{part}",
          "/groups/{group}/stream", "/jobs/{job}/stream")


def paths_of(pages, names):
    """Return {path: route} of the pages. names: values of the parameters, {"topic": "orders"}."""
    found = {}
    for page in pages:
        if "GET" in page.methods and page.path not in OTHERS:
            for query in QUERIES.get(page.path, [""]):
                path = page.path.format(**{key: quote(one, safe="")
                                           for key, one in names.items()})
                text = query.format(**{key: quote(one, safe="") for key, one in names.items()})
                found[f"{path}?{text}" if text else path] = page.path
    return found
