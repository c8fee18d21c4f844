// Prints the page /metrics of the fake box, for check_metrics.sh.
#include <iostream>

#include "appliance/admin/metrics.h"
#include "tests/unit/appliance/admin/fake_source.h"

int main() {
  const pbox::admin::FakeSource source;
  std::cout << pbox::admin::metrics_text(source, pbox::admin::read_process_usage());
}
