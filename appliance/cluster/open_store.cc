#include "appliance/cluster/open_store.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "appliance/cluster/etcd_store.h"
#include "appliance/cluster/local_store.h"

namespace pbox::cluster {
namespace {

Result<std::string> read_file(const std::string& key, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::ostringstream text;
  errno = 0;
  if (!file || !(text << file.rdbuf())) {
    Error error = system_error("cannot read cluster." + key + " = " + path, errno);
    error.message += "; name a file that this user may read, and that is not empty";
    return error;
  }
  return text.str();
}

}  // namespace

Result<std::unique_ptr<Store>> open_store(boost::asio::io_context& context,
                                          const config::Cluster& config, storage::Disk& disk) {
  if (config.store == config::StoreKind::kLocal) {
    auto store = LocalStore::open(context, disk);
    if (!store) return store.error();
    return std::unique_ptr<Store>(std::move(*store));
  }
  EtcdOptions options{.endpoints = config.endpoints,
                      .prefix = "pbox/" + config.name + "/",
                      .lease_ttl_s = config.lease_ttl_s,
                      .user = config.user};
  struct File {
    const char* key;
    const std::string& path;
    std::string& text;
  };
  for (const File& file : {File{"password_file", config.password_file, options.password},
                           File{"ca_file", config.ca_file, options.ca},
                           File{"cert_file", config.cert_file, options.certificate},
                           File{"key_file", config.key_file, options.key}}) {
    auto text = read_file(file.key, file.path);
    if (!text) return text.error();
    file.text = std::move(*text);
  }
  const size_t end = options.password.find_first_of("\r\n");
  if (end != std::string::npos) options.password.resize(end);
  return make_etcd_store(context, options);
}

}  // namespace pbox::cluster
