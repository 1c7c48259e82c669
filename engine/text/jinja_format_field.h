#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/text/jinja_value.h"

namespace lockstep::text::jinja {

constexpr std::size_t kMaxWidth = 1u << 20, kMaxPrecision = 1000;

/// One field: how a value is to be shown. Both ways of formatting are brought to this.
struct Field {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + blank -
  bool alternate = false;
  std::size_t width = 0;
  char grouping = '\0';  // , _
  std::optional<std::size_t> precision;
  char type = '\0';
};

/// By `field.type`: d b o x X c.
std::string format_integer(const Field& field, Integer number);
/// By `field.type`: e f g, their capitals, %, or none.
std::string format_float(const Field& field, double number);
std::string format_text(const Field& field, const std::string& text);

}  // namespace lockstep::text::jinja
