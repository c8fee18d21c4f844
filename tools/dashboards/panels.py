"""The panels of the dashboards. make_dashboards.py lays them out.

A panel is (kind, title, unit, help, {legend: query}). Kinds: "stat" (current numbers, narrow),
"time" (a graph over time, half a row), "table" (current values, a whole row). Units are Grafana's.
$box and $job are the reader's choice; each may stand for several.
"""

BOX = 'instance=~"$box"'
JOB = 'instance=~"$box",training_job=~"$job"'
RATE = "[$__rate_interval]"


def rate(metric, labels, by=""):
    total = f"rate({metric}{{{labels}}}{RATE})"
    return f"sum by ({by}) ({total})" if by else total


def quantile(share, metric):
    buckets = f"rate({metric}_bucket{{{JOB}}}{RATE})"
    return f"histogram_quantile({share}, sum by (training_job, le) ({buckets}))"


BOX_PANELS = [
    ("stat", "Ready", "bool_yes_no", "Whether the box accepts jobs.",
     {"{{instance}}": f"pbox_ready{{{BOX}}}"}),
    ("stat", "Up for", "s", "Time since the daemon started.",
     {"{{instance}}": f"pbox_uptime_seconds{{{BOX}}}"}),
    ("stat", "Workers", "none", "Open control connections.",
     {"{{instance}}": f"pbox_control_connections{{{BOX}}}"}),
    ("stat", "Memory of jobs", "percentunit", "Share of the memory that jobs may take.",
     {"{{instance}}": f"pbox_box_job_memory_bytes{{{BOX}}} / "
                      f"pbox_box_job_memory_limit_bytes{{{BOX}}}"}),
    ("time", "Received", "Bps", "By pipeline, headers and tags included.",
     {"{{instance}} pipeline {{pipeline}}": rate("pbox_rx_bytes_total", BOX)}),
    ("time", "Sent", "Bps", "By pipeline, headers and tags included.",
     {"{{instance}} pipeline {{pipeline}}": rate("pbox_tx_bytes_total", BOX)}),
    ("time", "Busy", "percentunit",
     "Share of time in which the core had work. Near 100 %, that core is the bottleneck.",
     {"{{instance}} pipeline {{pipeline}}": rate("pbox_pipeline_busy_seconds_total", BOX)}),
    ("time", "Cycles per byte", "none",
     "Cycles of a pipeline's core by phase, from sampled turns of its loop.",
     {"{{phase}}": f"{rate('pbox_pipeline_sampled_cycles_total', BOX, 'phase')} / ignoring (phase) "
                   f"group_left sum({rate('pbox_pipeline_sampled_bytes_total', BOX)})"}),
    ("time", "Chunks queued for sending", "none",
     "Finished chunks in the queue to be sent. If the number grows, sending is the bottleneck.",
     {"{{instance}} pipeline {{pipeline}}": f"pbox_pipeline_queued_chunks{{{BOX}}}"}),
    ("time", "Fragments that were not new", "pps",
     "Duplicate and stale fragments. They show that packets are lost or late.",
     {"{{reason}}": f"sum by (reason) (rate(pbox_fragments_total{{{BOX},reason!=\"aggregated\"}}"
                    f"{RATE}))"}),
    ("time", "Packets refused", "pps", "By reason. The box answers none of them.",
     {"{{reason}}": rate("pbox_rejected_packets_total", BOX, "reason")}),
    ("time", "Port errors", "pps",
     "Packets not sent, frames dropped, and packets without a buffer.",
     {"send failures": rate("pbox_port_send_failures_total", BOX, "instance"),
      "no buffer": rate("pbox_port_no_buffer_total", BOX, "instance"),
      "dropped, {{reason}}": rate("pbox_port_dropped_frames_total", BOX, "reason")}),
    ("time", "Processor time of the daemon", "percentunit", "All threads; 100 % is one core.",
     {"{{instance}}": rate("pbox_cpu_seconds_total", BOX)}),
    ("time", "Pipeline loop ticks", "hertz",
     "Ticks of each pipeline's loop. At 0 the pipeline hangs.",
     {"{{instance}} pipeline {{pipeline}}": rate("pbox_pipeline_ticks_total", BOX)}),
    ("time", "Keys expire in", "s", "Without keys there is no line.",
     {"{{instance}}": f"pbox_keys_expiry_timestamp_seconds{{{BOX}}} - time()"}),
    ("time", "Updates of data keys", "none",
     "Per second. Workers that fall behind the box do not follow an update.",
     {"{{state}}": rate("pbox_key_updates_total", BOX, "state")}),
]

JOB_PANELS = [
    ("stat", "Ranks", "none", "By state.",
     {"{{training_job}} {{state}}":
      f"sum by (training_job, state) (pbox_job_workers{{{JOB}}}) > 0"}),
    ("stat", "Memory", "bytes", "Memory that the job takes on the box.",
     {"{{training_job}}": f"pbox_job_memory_bytes{{{JOB}}}"}),
    ("stat", "Chunk rounds", "none", "Rounds of chunks finished per second.",
     {"{{training_job}}": rate("pbox_job_chunk_rounds_total", JOB)}),
    ("stat", "Median arrival skew", "s", "From the first rank's push of a chunk to the last one's.",
     {"{{training_job}}": quantile(0.5, "pbox_job_arrival_skew_seconds")}),
    ("time", "Gradients received", "Bps", "By rank.",
     {"{{training_job}} rank {{rank}}": rate("pbox_worker_bytes_received_total", JOB)}),
    ("time", "Time of a round", "s",
     "From the first rank's push to the last one's, over all chunks of a pipeline.",
     {"{{training_job}} 50 %": quantile(0.5, "pbox_job_round_seconds"),
      "{{training_job}} 99 %": quantile(0.99, "pbox_job_round_seconds")}),
    ("time", "Arrival skew", "s", "Time from the first rank's push of a chunk to the last one's.",
     {"{{training_job}} 50 %": quantile(0.5, "pbox_job_arrival_skew_seconds"),
      "{{training_job}} 99 %": quantile(0.99, "pbox_job_arrival_skew_seconds")}),
    ("time", "Duplicates", "pps",
     "Fragments that had arrived before. They show that packets are lost or late.",
     {"{{training_job}} rank {{rank}}": rate("pbox_worker_duplicate_fragments_total", JOB)}),
    ("time", "Infinities and NaNs", "pps", "Fragments pushed with an infinity or a NaN, by rank.",
     {"{{training_job}} rank {{rank}}": rate("pbox_worker_nonfinite_fragments_total", JOB)}),
    ("time", "Norm of the gradient", "none",
     "Each rank's newest measured gradient. A rank far above the others spoils the result.",
     {"{{training_job}} rank {{rank}}":
          f"sqrt(sum by (training_job, rank) (pbox_worker_gradient_squares{{{JOB}}}))"}),
    ("time", "Since the last packet", "s", "By rank.",
     {"{{training_job}} rank {{rank}}": f"pbox_worker_last_packet_age_seconds{{{JOB}}}"}),
    ("time", "Staleness of reads, in rounds", "none", "Only for jobs that report the age of data.",
     {"{{training_job}} 99 %": quantile(0.99, "pbox_job_read_rounds_behind")}),
    ("time", "Reads that waited", "percentunit", "Only for models that let some reads proceed.",
     {"{{training_job}}": f"{rate('pbox_job_pulls_delayed_total', JOB)} / "
                          f"{rate('pbox_job_pulls_total', JOB)}"}),
    ("time", "Lead of the fastest", "none", "Rounds between the fastest and the slowest rank.",
     {"{{training_job}}": f"pbox_job_lead_rounds{{{JOB}}}"}),
]

CLUSTER_PANELS = [
    ("stat", "Boxes up", "none", "Ready boxes that Prometheus reaches.",
     {"": "count(pbox_ready == 1)"}),
    ("stat", "Boxes registered", "none", "Boxes in the cluster's store, as each box last read it.",
     {"{{instance}}": f"pbox_cluster_boxes{{{BOX}}}"}),
    ("stat", "Leads", "bool_yes_no", "Exactly one box of a cluster should lead.",
     {"{{instance}}": f"pbox_cluster_is_leader{{{BOX}}}"}),
    ("stat", "Store", "bool_yes_no", "Whether the cluster's store answers this box.",
     {"{{instance}}": f"pbox_cluster_store_up{{{BOX}}}"}),
    ("table", "Boxes", "none", "The release of each box.", {"": f"pbox_build_info{{{BOX}}}"}),
    ("time", "Received by box", "Bps", "Sum over all pipelines.",
     {"{{instance}}": rate("pbox_rx_bytes_total", BOX, "instance")}),
    ("time", "Sent by box", "Bps", "Sum over all pipelines.",
     {"{{instance}}": rate("pbox_tx_bytes_total", BOX, "instance")}),
    ("time", "Busiest pipeline", "percentunit", "The busiest pipeline of each box.",
     {"{{instance}}": f"max by (instance) ({rate('pbox_pipeline_busy_seconds_total', BOX)})"}),
    ("time", "Jobs", "none", "Jobs on each box.",
     {"{{instance}}": f"count by (instance) (pbox_job_memory_bytes{{{BOX}}})"}),
    ("time", "Joins refused, jobs failed", "none", "In the last five minutes.",
     {"{{instance}} refused": f"increase(pbox_joins_refused_total{{{BOX}}}[5m])",
      "{{instance}} failed": f"increase(pbox_jobs_failed_total{{{BOX}}}[5m])"}),
    ("time", "Ranks lost, back, left out", "none", "In the last five minutes.",
     {"{{instance}} lost": f"increase(pbox_workers_lost_total{{{BOX}}}[5m])",
      "{{instance}} back": f"increase(pbox_workers_back_total{{{BOX}}}[5m])",
      "{{instance}} left out": f"increase(pbox_workers_excluded_total{{{BOX}}}[5m])"}),
]

STRAGGLER_PANELS = [
    ("stat", "Waits for", "s", "Ranks that the others wait for now, and for how long.",
     {"{{training_job}} rank {{rank}}": f"topk(5, pbox_worker_awaited_seconds{{{JOB}}})"}),
    ("stat", "Latest rank", "percentunit",
     "Each rank's share of the lateness in the last minutes.",
     {"{{training_job}} rank {{rank}}":
      f"topk(3, {rate('pbox_worker_late_seconds_total', JOB)} / on (instance, training_job) "
      f"group_left sum by (instance, training_job) "
      f"({rate('pbox_worker_late_seconds_total', JOB)}))"}),
    ("time", "Lateness by rank", "s",
     "How much earlier rounds would end without the rank, per second, summed over chunks.",
     {"{{training_job}} rank {{rank}}": rate("pbox_worker_late_seconds_total", JOB)}),
    ("time", "Was the last", "percentunit", "Share of chunk rounds in which the rank was the last.",
     {"{{training_job}} rank {{rank}}":
      f"{rate('pbox_worker_last_arrivals_total', JOB)} / on (instance, training_job) group_left "
      f"{rate('pbox_job_chunk_rounds_total', JOB)}"}),
    ("time", "Awaited", "s", "Time that the other ranks have waited for this rank's push.",
     {"{{training_job}} rank {{rank}}": f"pbox_worker_awaited_seconds{{{JOB}}}"}),
    ("time", "Arrival skew, 99 %", "s",
     "Time from the first rank's push of a chunk to the last one's.",
     {"{{training_job}}": quantile(0.99, "pbox_job_arrival_skew_seconds")}),
    ("time", "Missed rounds", "cps",
     "Rounds of chunks that closed before the rank's push was complete, per second (model drop).",
     {"{{training_job}} rank {{rank}}": rate("pbox_job_missed_rounds_total", JOB)}),
    ("table", "Ranks", "s", "Total lateness of each rank since the job began.",
     {"": f"sort_desc(pbox_worker_late_seconds_total{{{JOB}}})"}),
]

DASHBOARDS = [
    ("pbox-box", "PBox: a box", ["box"], BOX_PANELS),
    ("pbox-job", "PBox: a job", ["box", "job"], JOB_PANELS),
    ("pbox-cluster", "PBox: all boxes", ["box"], CLUSTER_PANELS),
    ("pbox-stragglers", "PBox: stragglers", ["box", "job"], STRAGGLER_PANELS),
]
