// The text of docs/composition.md around the pairs that test_service_composition.cc finds.
#pragma once

namespace pbox::test {

inline constexpr char kHead[] = R"(# Which features go together

Every pair of the features below was tried with a job of two ranks on a real box, and the results
were verified. `tests/integration/test_service_composition.cc` tries them again and compares this
page with what it finds; run it with `PBOX_WRITE_COMPOSITION=1` to write the page anew. Features
that the page does not name as a pair go together.

A model other than bsp, `restore` and `replicas 1` were tried in mode optimize, and the models with
`recovery none`, unless the pair says otherwise. With `guard reject` and `guard zero` one rank
pushes a value beyond `guard_max_abs` at the end. With `weighted` the ranks' pushes have different
weights. With `keys` the box and the ranks have keys, and with `keys that encrypt` the box has
`security.encrypt = true` too. In mode collective the ranks reduced a buffer, and scattered and
gathered it.

## Features

)";

inline constexpr char kTail[] = R"(
## Not tried here

| pair | why |
|---|---|
| `replicas 1` with all but the above | needs a cluster: `test_service_replicas`, with guards too |
| ports `dpdk:` and `rdma:` | need devices; `test_service_memif`, `tests/vm` train over them |
| chunks that move between pipelines | `test_service_pipeline_moves` and `pbox-sim` move them |
| parts that move | needs a cluster; `test_service_moves`, `test_service_sync_moves` move parts |
| `on_worker_lost abort` with a rank that rejoins | the job ends at the loss |

* Every pair has the same outcome over shared memory (`PBOX_PORT=shm`): `tools/test --all` tries
  them once more there.
* Inputs in memory of `pbox_alloc` are read in place if all tensors are bsp and not compressed. Else
  they are copied, with the same outcome.
* `PBOX_PORT=dpdk:...` without a second port refuses a job in several parts.
* Which jobs may move is in [consistency.md](consistency.md#what-goes-together).
)";

}  // namespace pbox::test
