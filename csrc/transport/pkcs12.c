/* Reads PKCS12 files, as written by keytool and openssl: keystores and truststores. */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/pkcs12.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tls_context.h"

static bool refuse(char *why, const char *what) {
    unsigned long error = ERR_peek_last_error();
    const char *reason = error == 0 ? NULL : ERR_reason_error_string(error);
    snprintf(why, TLS_WHY_BYTES, reason == NULL ? "%s" : "%s: %s", what, reason);
    ERR_clear_error();
    return false;
}

/* Returns the BIO's text and frees the BIO. Returns NULL if out of memory. */
static char *text_of(BIO *bio) {
    char *data = NULL;
    long bytes = BIO_get_mem_data(bio, &data);
    char *text = malloc((size_t)bytes + 1);
    if (text != NULL) {
        memcpy(text, data, (size_t)bytes);
        text[bytes] = 0;
    }
    BIO_free(bio);
    return text;
}

static char *key_text(EVP_PKEY *key) {
    BIO *bio = BIO_new(BIO_s_mem());
    if (bio != NULL && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1)
        return text_of(bio);
    BIO_free(bio);
    return NULL;
}

static char *certificates_text(X509 *first, const STACK_OF(X509) *others) {
    BIO *bio = BIO_new(BIO_s_mem());
    bool good = bio != NULL && (first == NULL || PEM_write_bio_X509(bio, first) == 1);
    for (int i = 0; good && i < sk_X509_num(others); i++)
        good = PEM_write_bio_X509(bio, sk_X509_value(others, i)) == 1;
    if (good) return text_of(bio);
    BIO_free(bio);
    return NULL;
}

static bool is_right(PKCS12 *file, const char *password) {
    /* There are two encodings of an empty password. */
    return PKCS12_verify_mac(file, password, -1) == 1 ||
           (password[0] == 0 && PKCS12_verify_mac(file, NULL, 0) == 1);
}

bool tls_store_open(const void *data, size_t bytes, const char *password, struct tls_store *out,
                    char why[TLS_WHY_BYTES]) {
    *out = (struct tls_store){0};
    ERR_clear_error();
    BIO *bio = bytes > INT_MAX ? NULL : BIO_new_mem_buf(data, (int)bytes);
    PKCS12 *file = bio == NULL ? NULL : d2i_PKCS12_bio(bio, NULL);
    BIO_free(bio);
    if (file == NULL) return refuse(why, "it is not a PKCS12 file");
    EVP_PKEY *key = NULL;
    X509 *own = NULL;
    STACK_OF(X509) *others = NULL;
    bool good = true;
    if (PKCS12_mac_present(file) && !is_right(file, password)) {
        ERR_clear_error();
        good = refuse(why, "its password is wrong");
    } else if (PKCS12_parse(file, password, &key, &own, &others) != 1) {
        good = refuse(why, "it cannot be decrypted");
    }
    PKCS12_free(file);
    if (good && key != NULL) {
        out->key = key_text(key);
        out->chain = certificates_text(own, others);
    } else if (good) {
        out->trusted = certificates_text(own, others);
    }
    good = good && ((out->key != NULL && out->chain != NULL) || out->trusted != NULL ||
                    refuse(why, "out of memory"));
    EVP_PKEY_free(key);
    X509_free(own);
    sk_X509_pop_free(others, X509_free);
    if (!good) tls_store_close(out);
    return good;
}

void tls_store_close(struct tls_store *store) {
    if (store->key != NULL) OPENSSL_cleanse(store->key, strlen(store->key));
    free(store->key);
    free(store->chain);
    free(store->trusted);
    *store = (struct tls_store){0};
}
