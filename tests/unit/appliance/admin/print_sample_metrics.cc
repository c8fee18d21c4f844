// Prints the page /metrics of the fake box, for check_metrics.sh.
#include <iostream>

#include "appliance/admin/metrics.h"
#include "tests/unit/appliance/admin/fake_source.h"

int main() {
  const pbox::appliance::FakeSource source;
  std::cout << pbox::appliance::metrics_text(source, pbox::appliance::read_process_usage());
}
