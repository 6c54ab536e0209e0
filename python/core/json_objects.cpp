// SPDX-License-Identifier: Apache-2.0
#include "json_objects.h"

#include <nlohmann/json.hpp>

namespace py = pybind11;

namespace penstock {

py::object object_of(const nlohmann::ordered_json& value) {
  if (value.is_null()) return py::none();
  if (value.is_boolean()) return py::bool_(value.get<bool>());
  if (value.is_number_float()) return py::float_(value.get<double>());
  if (value.is_number()) return py::int_(value.get<std::int64_t>());
  if (value.is_string()) return py::cast(value.get<std::string>());
  if (value.is_array()) {
    py::list out;
    for (const auto& element : value) out.append(object_of(element));
    return out;
  }
  py::dict out;
  for (const auto& [key, element] : value.items()) out[py::cast(key)] = object_of(element);
  return out;
}

}  // namespace penstock
