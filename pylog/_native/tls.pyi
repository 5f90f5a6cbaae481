from typing import final

VERSIONS: dict[str, int]
CLIENT_AUTH: dict[str, int]

class TlsError(Exception): ...

@final
class TlsServer:
    def __init__(self) -> None: ...
    def use(
        self, *, chain: bytes, key: bytes, key_password: bytes | None = None,
        trusted: bytes | None = None, revoked: bytes | None = None, ciphers: bytes | None = None,
        version_min: str = "TLSv1.2", version_max: str = "TLSv1.3", client_auth: str = "none",
    ) -> None: ...
    def maker(self) -> object: ...

def open_pkcs12(
    data: bytes, password: bytes
) -> tuple[bytes | None, bytes | None, bytes | None]: ...
def library() -> str: ...
