function (newDoc, oldDoc, userCtx) {
  // The server has these rules itself, and never runs this function. It is here to be read.
  var PREFIX = 'org.couchdb.user:';
  var isAdmin = userCtx.roles.indexOf('_admin') >= 0;
  var isString = function (value) { return typeof value === 'string'; };
  var require = function (holds, reason) { if (!holds) { throw { forbidden: reason }; } };

  if (newDoc._deleted) {
    require(isAdmin || newDoc._id === PREFIX + userCtx.name, 'Only admins may delete other user docs.');
    return;
  }
  require(newDoc.type === 'user', 'doc.type must be user');
  require(isString(newDoc.name) && newDoc.name, 'doc.name is required');
  require(newDoc.roles, 'doc.roles must exist');
  require(Array.isArray(newDoc.roles), 'doc.roles must be an array');
  require(newDoc.roles.every(isString), 'doc.roles can only contain strings');
  require(newDoc._id === PREFIX + newDoc.name, 'Doc ID must be of the form org.couchdb.user:name');
  require(!oldDoc || oldDoc.name === newDoc.name, 'Usernames can not be changed.');
  require(newDoc.password == null || isString(newDoc.password), 'doc.password must be a string');

  if (newDoc.password == null) {
    require(newDoc.password_sha == null || newDoc.salt != null, 'Users with password_sha must have a salt.');
    if (newDoc.password_scheme === 'pbkdf2' || newDoc.password_scheme === 'simple+pbkdf2') {
      require(typeof newDoc.iterations === 'number', 'iterations must be a number.');
      require(isString(newDoc.derived_key), 'derived_key must be a string.');
    } else {
      require(newDoc.password_scheme == null || newDoc.password_scheme === 'simple',
        'Password scheme `' + newDoc.password_scheme + '` not supported.');
    }
  }
  if (!isAdmin) {
    var sorted = function (roles) { return JSON.stringify((roles || []).slice().sort()); };
    require(!oldDoc || userCtx.name === newDoc.name, 'You may only update your own user document.');
    require(oldDoc || newDoc.roles.length === 0, 'Only _admin may set roles');
    require(!oldDoc || sorted(oldDoc.roles) === sorted(newDoc.roles), 'Only _admin may edit roles');
  }
  require(newDoc.roles.every(function (role) { return role[0] !== '_' || role === '_metrics'; }),
    'No system roles (starting with underscore) in users db.');
  require(newDoc.name[0] !== '_', 'Username may not start with underscore.');
  require(newDoc.name.indexOf(':') < 0, 'Character `:` is not allowed in usernames.');
}
