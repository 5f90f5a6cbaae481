/* Formats a certificate's name as text, in reverse order, like Java's X500Principal.getName(),
 * which Kafka's mapping rules and ACLs expect. Attributes without one of its nine keywords are
 * written as an OID and the hex encoding of the value. */
#include <openssl/err.h>
#include <openssl/objects.h>
#include <openssl/x509.h>
#include <stdint.h>
#include <string.h>

#include "transport/tls_context.h"

struct text {
    char *to;
    size_t room, len;
    bool whole;
};

static void add(struct text *t, const char *bytes, size_t len) {
    if (len >= t->room - t->len) { /* one byte for the NUL */
        t->whole = false;
        return;
    }
    memcpy(t->to + t->len, bytes, len);
    t->len += len;
    t->to[t->len] = 0;
}

static const char *keyword_of(const ASN1_OBJECT *object) {
    switch (OBJ_obj2nid(object)) {
    case NID_commonName: return "CN";
    case NID_countryName: return "C";
    case NID_localityName: return "L";
    case NID_stateOrProvinceName: return "ST";
    case NID_organizationName: return "O";
    case NID_organizationalUnitName: return "OU";
    case NID_streetAddress: return "STREET";
    case NID_domainComponent: return "DC";
    case NID_userId: return "UID";
    default: return NULL;
    }
}

static void add_hex(struct text *t, const ASN1_STRING *value) {
    static const char digits[] = "0123456789abcdef";
    unsigned char *der = NULL;
    int len = 0;
    ASN1_TYPE *type = ASN1_TYPE_new();
    if (type != NULL && ASN1_TYPE_set1(type, ASN1_STRING_type(value), value) == 1)
        len = i2d_ASN1_TYPE(type, &der);
    t->whole = t->whole && der != NULL && len > 0;
    add(t, "#", 1);
    for (int i = 0; t->whole && i < len; i++)
        add(t, (char[]){digits[der[i] >> 4], digits[der[i] & 15]}, 2);
    OPENSSL_free(der);
    ASN1_TYPE_free(type);
}

static void add_text(struct text *t, const ASN1_STRING *value) {
    unsigned char *text = NULL;
    int len = ASN1_STRING_to_UTF8(&text, value);
    if (len < 0) {
        t->whole = false;
        return;
    }
    int first = 0, last = len; /* spaces between them are not escaped */
    while (first < len && text[first] == ' ') first++;
    while (last > first && text[last - 1] == ' ') last--;
    for (int i = 0; t->whole && i < len; i++) {
        if (text[i] == 0) {
            add(t, "\\00", 3);
            continue;
        }
        bool edge = text[i] == ' ' && (i < first || i >= last);
        if (edge || strchr(",=+<>#;\"\\", text[i]) != NULL) add(t, "\\", 1);
        add(t, (const char *)&text[i], 1);
    }
    OPENSSL_free(text);
}

static void add_entry(struct text *t, const X509_NAME_ENTRY *entry) {
    const ASN1_OBJECT *object = X509_NAME_ENTRY_get_object(entry);
    const ASN1_STRING *value = X509_NAME_ENTRY_get_data(entry);
    const char *keyword = keyword_of(object);
    char oid[128];
    int len = keyword != NULL ? (int)strlen(keyword) : OBJ_obj2txt(oid, sizeof oid, object, 1);
    if (len <= 0 || (size_t)len >= sizeof oid) {
        t->whole = false;
        return;
    }
    add(t, keyword != NULL ? keyword : oid, (size_t)len);
    add(t, "=", 1);
    if (keyword != NULL)
        add_text(t, value);
    else
        add_hex(t, value);
}

bool tls_name(const X509_NAME *name, char *to, size_t room) {
    struct text t = {.to = to, .room = room, .whole = room > 0};
    if (t.whole) to[0] = 0;
    int count = X509_NAME_entry_count(name), end = count;
    while (t.whole && end > 0) {
        int set = X509_NAME_ENTRY_set(X509_NAME_get_entry(name, end - 1)), first = end;
        while (first > 0 && X509_NAME_ENTRY_set(X509_NAME_get_entry(name, first - 1)) == set)
            first--;
        for (int i = first; i < end; i++) {
            if (i > first)
                add(&t, "+", 1);
            else if (end < count)
                add(&t, ",", 1);
            add_entry(&t, X509_NAME_get_entry(name, i));
        }
        end = first;
    }
    ERR_clear_error();
    return t.whole;
}
