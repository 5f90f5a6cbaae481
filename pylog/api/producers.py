"""InitProducerId (22): identities for idempotent producers.

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) an id is handed out once, also over restarts: blocks come from the metadata log.
Source: KIP-98, KIP-360. A transactional id belongs to the broker that leads its partition of
  `__transaction_state`; until brokers of ours coordinate transactions no broker does, and the
  answer is NOT_COORDINATOR, as Kafka's from a broker that does not lead that partition.
  FindCoordinator is not advertised meanwhile, so that clients see at once that there are no
  transactions here.
"""

from pylog._native.log import LogError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

NONE = -1   # No producer id, no epoch.


async def init_producer_id(broker, context, request):
    if request.transactional_id is not None:
        return messages.InitProducerIdResponse(
            error_code=_transactional_fault(broker.settings, request), producer_id=NONE,
            producer_epoch=NONE)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return messages.InitProducerIdResponse(
            error_code=ErrorCode.INVALID_REQUEST, producer_id=NONE, producer_epoch=NONE)
    # An idempotent producer that names its old id and epoch gets a new id as well (KIP-360).
    try:
        producer_id = await broker.controller.next_producer_id()
    except LogError as error:
        return messages.InitProducerIdResponse(
            error_code=error.code, producer_id=NONE, producer_epoch=NONE)
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _transactional_fault(settings, request) -> int:
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.transaction_timeout_ms <= settings["transaction.max.timeout.ms"]:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NOT_COORDINATOR


HANDLERS = {api.INIT_PRODUCER_ID: init_producer_id}
