"""An HTTP server that answers the live page as a box with many pipelines and jobs would."""

import http.server
import json
import math
import pathlib
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[3] / "appliance/admin/page/live.html"
GIGA = 10 ** 9


def box(pipelines, jobs, now_s):
    def counters(index):
        rate = (1 + index % 5) * 0.4 * GIGA
        return {"pbox_rx_bytes_total": int(rate * now_s), "pbox_tx_bytes_total": int(rate * now_s),
                "pbox_chunk_rounds_total": int(900 * now_s),
                "pbox_pipeline_busy_seconds_total": now_s * (0.1 + 0.8 * (index % 7) / 7),
                "pbox_pipeline_queued_chunks": index % 3}
    return {"name": "rack-7", "version": "0.1.0", "ready": True, "draining": False,
            "insecure": True, "uptime_seconds": 90061.5, "job_memory_bytes": 41 * GIGA,
            "job_memory_limit_bytes": 96 * GIGA, "workers_lost": 3, "jobs_failed": 1,
            "jobs_finished": 412, "control_connections": 8 * jobs,
            "pipelines": [{"index": index, "cpu": index, "node": index // 16,
                           "address": "192.168.100.7", "udp_port": 9542 + index, "port": "dpdk",
                           "nic": f"0000:{index // 16:02x}:00.0", "affinity": "udp-port",
                           "counters": counters(index)} for index in range(pipelines)]}


def name_of(job):
    return f"team-{job % 4}/llama-pretraining-with-a-long-name-{job}" if job % 5 == 0 else f"j{job}"


def jobs(count, now_s):
    return [{"name": name_of(job), "state": "running", "mode": "optimize", "is_backup": False,
             "world_size": 8, "memory_bytes": (job + 1) * GIGA // 5, "sync": {"model": "bsp"},
             "chunk_rounds": int(now_s * 1000 * (job + 1)),
             "workers": [{"rank": rank, "state": "lost" if job == 3 and rank == 5 else "joined"}
                         for rank in range(8)]} for job in range(count)]


def stragglers(count):
    return [{"job": name_of(job), "awaited": [{"rank": 5, "waited_seconds": 2.25}] if job == 3
             else [], "ranks": [
                 {"rank": rank, "peer": f"10.1.{job}.{rank}:40122", "state": "joined",
                  "last_share": 0.2 * rank, "late_seconds": 30.0 * rank / (job + 1),
                  "worst_late_seconds": 1.5 * rank, "worst_tensor": "decoder.layers.11.weight",
                  "worst_round": 811} for rank in range(3)]} for job in range(count)]


def history(count):
    def wave(index, job):
        return int(max(0, 800 + 500 * math.sin(index / 9 + job) - 900 * (index % 40 == 39)))
    return {"interval_seconds": 1,
            "received_bytes_per_second": [int((3 + math.sin(at / 50)) * GIGA) for at in range(600)],
            "sent_bytes_per_second": [int((3.4 + math.cos(at / 70)) * GIGA) for at in range(600)],
            "chunk_rounds_per_second": [1000] * 600, "busiest_ratio": [0.5] * 600,
            "jobs": [{"job": name_of(job), "is_over": job == count, "interval_seconds": 5,
                      "chunk_rounds_per_second": [wave(at, job) for at in range(120)],
                      "late_rank": [5 if at % 17 == 0 else None for at in range(120)],
                      "late_seconds": [3.0 if at % 17 == 0 else 0 for at in range(120)],
                      "events": [{"age_seconds": 590.0 - 7 * job, "event": "job_started",
                                  "severity": "info", "text": f"job '{name_of(job)}': 8 workers, "
                                  "7,273,000 elements in 148 tensors, epoch 91"},
                                 {"age_seconds": 200.0 - 3 * job, "event": "worker_lost",
                                  "severity": "warning", "text": f"job '{name_of(job)}': rank 5 "
                                  "(10.1.2.5:40122) lost: connection reset by peer"}]}
                     for job in range(count + 1 if count else 0)]}


class FakeBox:
    """Serves the page on a free port of 127.0.0.1."""

    def __init__(self, pipeline_count, job_count):
        started = time.monotonic() - 1000

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                now_s = time.monotonic() - started
                pages = {"/api/v1/box": lambda: box(pipeline_count, job_count, now_s),
                         "/api/v1/jobs": lambda: {"jobs": jobs(job_count, now_s)},
                         "/api/v1/stragglers": lambda: {"jobs": stragglers(job_count)},
                         "/api/v1/history": lambda: history(job_count)}
                if self.path == "/":
                    body, kind = PAGE.read_bytes(), "text/html; charset=utf-8"
                else:
                    body, kind = json.dumps(pages[self.path]()).encode(), "application/json"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
