#pragma once

#include "engine/text/jinja_builtins.h"

namespace lockstep::text::jinja {

/// The part of `find_filter` that works on sequences and dicts.
const Filter* find_sequence_filter(std::string_view name);

}  // namespace lockstep::text::jinja
