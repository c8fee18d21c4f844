// Prints the reference page of all metrics: docs/metrics.md.
#include <iostream>

#include "appliance/admin/metric_table.h"

int main() {
  std::cout << pbox::admin::metric_reference();
}
