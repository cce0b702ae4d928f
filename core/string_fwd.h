#pragma once
// Declares std::string. nvcc needs a second to read <string>, which no kernel uses; the standard
// libraries declare the class in <iosfwd>.
#ifdef __CUDACC__
#include <iosfwd>
#else
#include <string>
#endif
