"""``GET /metrics`` on the admin surface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from drivetrain.gateway.admin import AdminPart
from drivetrain.gateway.openapi.operation import operation
from drivetrain.metrics.families import GatewayCollector
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.watch import GatewayWatch

OPERATIONS = (operation("GET /metrics", "Prometheus text, or OpenMetrics where it is asked for.", str, media="text/*"),)


def metrics_part(watch: GatewayWatch, lag: LoopLag, more: Iterable[Collector] = ()) -> AdminPart:
    """The endpoint over one gateway. It has a registry of its own: several gateways of a process do not mix.

    The answer is in the format the scraper asks for (OpenMetrics or Prometheus text).

    Args:
        watch: of the gateway; it is closed with the surface.
        lag: is started and stopped with the surface.
        more: what else is collected.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (GatewayCollector(watch, lag), *more):
        registry.register(collector)
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    async def context(_: web.Application) -> AsyncIterator[None]:
        lag.start()
        yield
        await lag.stop()
        watch.close()

    return AdminPart(routes=(web.get("/metrics", metrics),), context=context, operations=OPERATIONS)
