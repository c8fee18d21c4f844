// Opens the store that [cluster] of the configuration names. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "appliance/cluster/store.h"
#include "appliance/storage/disk.h"
#include "config/config.h"

namespace pbox::cluster {

// Reads the credential files that the configuration names. Does not wait for etcd. `context` and
// `disk` outlive the store.
Result<std::unique_ptr<Store>> open_store(boost::asio::io_context& context,
                                          const config::Cluster& config, storage::Disk& disk);

}  // namespace pbox::cluster
